"""Fourth room: how to compute it.  `schedule` is what a user holds, `plan` what it decides."""
