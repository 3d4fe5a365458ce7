"""Parts of the iterations of a loop, and blocks of loops: cut, partition, blockize."""
