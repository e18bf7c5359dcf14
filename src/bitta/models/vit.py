"""Vision transformer with the parameter names of torchvision.

Dosovitskiy et al., ICLR 2021, https://openreview.net/forum?id=YicbFdNTTy
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.errors import InputError, SettingError
from bitta.models.pixel_model import PixelModel

EPS = 1e-6


class Attention(nn.Module):
    """Self-attention with one matrix for queries, keys and values."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (batch, tokens, width), each one a mixture of all tokens."""
        joint = F.linear(tokens, self.in_proj_weight, self.in_proj_bias)
        split = joint.unflatten(-1, (3, self.n_heads, -1))  # (batch, tokens, 3, heads, part)
        query, key, value = split.transpose(1, 3).unbind(2)  # each (batch, heads, tokens, part)
        mixed = F.scaled_dot_product_attention(query, key, value)
        mixture: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return mixture


class EncoderBlock(nn.Module):
    """Attention and two dense layers, each with a normalisation before and a residual sum after."""

    def __init__(self, width: int, n_heads: int, mlp_width: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=EPS)
        self.self_attention = Attention(width, n_heads)
        self.ln_2 = nn.LayerNorm(width, eps=EPS)
        # The numbers are those of torchvision, where 2 is a dropout layer.
        self.mlp = nn.Sequential(
            OrderedDict(
                [
                    ("0", nn.Linear(width, mlp_width)),
                    ("1", nn.GELU()),
                    ("3", nn.Linear(mlp_width, width)),
                ]
            )
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (batch, tokens, width)."""
        tokens = tokens + self.self_attention(self.ln_1(tokens))
        output: Tensor = tokens + self.mlp(self.ln_2(tokens))
        return output


class Encoder(nn.Module):
    """Position embedding, blocks, and a normalisation."""

    def __init__(
        self, n_tokens: int, *, width: int, depth: int, n_heads: int, mlp_width: int
    ) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, n_tokens, width).normal_(std=0.02))
        self.layers = nn.Sequential(
            OrderedDict(
                (f"encoder_layer_{index}", EncoderBlock(width, n_heads, mlp_width))
                for index in range(depth)
            )
        )
        self.ln = nn.LayerNorm(width, eps=EPS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (batch, tokens, width)."""
        encoded: Tensor = self.ln(self.layers(tokens + self.pos_embedding))
        return encoded


class VisionTransformer(PixelModel):
    """Transformer on square patches. The head classifies the class token."""

    def __init__(
        self,
        *,
        image_size: int,
        patch_size: int,
        width: int,
        depth: int,
        n_heads: int,
        mlp_width: int,
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(mean=mean, std=std)
        _check_division("image_size", image_size, "patch_size", patch_size)
        _check_division("width", width, "n_heads", n_heads)
        self.image_size = image_size
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.conv_proj = nn.Conv2d(len(mean), width, patch_size, stride=patch_size)
        n_tokens = (image_size // patch_size) ** 2 + 1
        self.encoder = Encoder(
            n_tokens, width=width, depth=depth, n_heads=n_heads, mlp_width=mlp_width
        )
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, n_classes)))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (batch, classes)."""
        if images.shape[-2:] != (self.image_size, self.image_size):
            raise InputError(
                f"images are {images.shape[-2]} x {images.shape[-1]} pixels; allowed: "
                f"{self.image_size} x {self.image_size}. Resize or crop them first."
            )
        patches = self.conv_proj(self.normalise(images)).flatten(2).transpose(1, 2)
        token = self.class_token.expand(len(images), -1, -1)
        encoded = self.encoder(torch.cat([token, patches], dim=1))
        logits: Tensor = self.heads(encoded[:, 0])
        return logits


def _check_division(name: str, whole: int, divisor_name: str, divisor: int) -> None:
    if divisor < 1 or whole % divisor:
        raise SettingError(f"{name} is {whole}; allowed: a multiple of {divisor_name} ({divisor}).")
