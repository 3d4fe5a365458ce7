"""What users of TVM's tensor expressions look for.

- `refused_names`: names that are left out on purpose, with what stands for each
- `counterparts`: names of modules and methods, and what to write instead
- `schedule_names`: methods of schedules and stages elsewhere, with what stands for each
"""
