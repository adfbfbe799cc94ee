"""The bundled reference models beside what is known of them.

``CARD.md`` and ``card.json`` are written by ``examples/train_reference_models/card.py``; how the models were trained
stands there too.

``card.py``: the card as data, and whether the files are the ones that were measured; which models answer which families
(the ladder, the wordings pair), and right answers by family, with Wilson's intervals.

The room knows ``tasks`` and ``engine``; no policy, no cloud, no price.
"""
