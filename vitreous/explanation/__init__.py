"""Looking inside a model: what it attends to, what its answer rests on, and what it has learned of patches and places.

Every map is a pure function of a model and of images as the model takes them; the command draws them on the picture.
"""
