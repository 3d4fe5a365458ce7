"""What is known of runtime sizes, and versions of a kernel for some of them: assume, specialize."""
