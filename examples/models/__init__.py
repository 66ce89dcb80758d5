"""The example models: single-device Flax code that knows nothing of clusters, with one `make_train_step` contract."""
