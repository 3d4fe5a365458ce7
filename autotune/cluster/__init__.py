"""Devices of this machine and of others.

- `cluster`: candidates of many problems on as many devices as there are
- `device_host`: a device as it is asked from elsewhere
- `host_answers`: what it answers, checked before it is believed
- `shared_claims`: searches that share a record file measure nothing twice
"""
