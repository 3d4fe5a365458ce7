"""What a user sees, during a search and after it.

- `events`: what happens, as objects and as JSON lines
- `event_source`: tells listeners
- `live_display`: a panel on a terminal, lines elsewhere
- `report`: the table and the report at the end
- `bottleneck`: which limit of the device binds the winner
- `ablation`: what each decision of the winner is worth
- `plots`: the tuning curve and the roofline as pictures
"""
