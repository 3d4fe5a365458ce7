"""Where the threads of a scan are launched (env_threads), and that its steps run in order.

Which stages belong to the steps is in `plan/scan_structure`.
"""
