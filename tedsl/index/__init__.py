"""Integer reasoning over scalar expressions: ranges, normal forms, simplification, proofs."""
