"""Neural-network operators written only with the language; the compiler knows none of them."""
