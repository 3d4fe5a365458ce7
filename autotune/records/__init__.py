"""What was tried, kept for the next search.

- `machine`: the device and the tools: where a result holds
- `record_key`: under what a result is kept
- `database`: the record file
- `schema`: its tables
- `checked_text`: text that others wrote, read as data
- `checked_outcomes`: outcomes that come as data
- `checked_rows`: rows of a record file
- `run_log`: what one run writes down as it goes
"""
