"""Networks: backbones, pooling, the encoder that joins them."""

from doubtless.models.encoder import Encoder, GeM, load_weights
from doubtless.models.networks import conv_cifar, conv_fashion

__all__ = ["Encoder", "GeM", "conv_fashion", "conv_cifar", "load_weights"]
