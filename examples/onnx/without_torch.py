"""An exported model without torch: numpy, Pillow and onnxruntime. First: doubtless export runs/first --out
first.onnx

python examples/onnx/without_torch.py first.onnx photo.jpg other.jpg
"""

import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model = onnxruntime.InferenceSession(sys.argv[1])
about = model.get_modelmeta().custom_metadata_map
size, mode = int(about["size"]), "L" if about["channels"] == "1" else "RGB"
images = [
    ImageOps.fit(Image.open(path).convert(mode), (size, size), Image.Resampling.BILINEAR)
    for path in sys.argv[2:]
]
batch = np.stack(
    [np.asarray(image).reshape(size, size, -1).transpose(2, 0, 1) for image in images]
)  # (n, C, H, W)
direction, uncertainty = model.run(["direction", "uncertainty"], {"images": batch})
for path, vector, doubt in zip(sys.argv[2:], direction, uncertainty, strict=True):
    print(f"{path}: uncertainty {doubt:.3g}, cosine to the first image {vector @ direction[0]:.3f}")
