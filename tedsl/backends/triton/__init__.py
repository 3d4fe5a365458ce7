"""The Triton backend: loop IR to readable source, compiled offline, interpreted or launched."""
