"""Networks: backbones, pooling, the encoder that joins them."""

from doubtless.models.backbones import BACKBONES, load_weights
from doubtless.models.encoder import Encoder, GeM
from doubtless.models.networks import conv_cifar, conv_fashion

__all__ = ["BACKBONES", "Encoder", "GeM", "conv_fashion", "conv_cifar", "load_weights"]
