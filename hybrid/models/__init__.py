"""The bundled reference models beside what is known of them.

``README.md`` and ``card.json`` are written by ``hybrid models card``; how the models were trained stands in
``examples/train_reference_models``.

- ``evaluation.py``: which models answer which families (the ladder, the wordings pair); right answers by family, with
  Wilson's intervals; how far a model's rows are from the large one's, and what its entropy knows about it.
- ``card.py``, ``card_page.py``: the card as data and as the page; whether the files are the ones that were measured.

The room knows ``tasks`` and ``engine``; no policy, no cloud, no price.
"""
