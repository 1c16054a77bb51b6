"""Type checker for jaxtyping under pytest: beartype, which accepts an int for a float (PEP 484)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
