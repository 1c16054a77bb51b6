"""Model families and their parts.

`vit.py` composes patches, tokens, position, encoder, pooling and head into a Vision Transformer; `resnet.py` and
`segmenter.py` are the other families. `config.py` and `options.py` describe a model without torch, `presets.py` names
configs, and `build.py` builds modules from them. Other packages use a model through `protocol.py`.
"""
