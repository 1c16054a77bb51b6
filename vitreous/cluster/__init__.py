"""Inference on one machine or on a Ray cluster.

`run_inference` implements `vitreous.predict` and `vitreous.embed`. `ray_shards` computes shards on a Ray cluster, and
`ray_serve` runs a web app on one; only these files and `ray_cluster` use Ray. The shards and the files are those of
`inference`, so results do not depend on where they were computed.
"""
