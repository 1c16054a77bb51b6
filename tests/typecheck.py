"""The checker behind jaxtyping's annotations under pytest: beartype, where an int may stand for a float (PEP 484)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
