"""Many runs that differ in method, options or seed, run side by side and compared pair by pair."""
