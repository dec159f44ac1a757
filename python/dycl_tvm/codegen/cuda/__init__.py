# Licensed under the Apache License, Version 2.0; see LICENSE.
"""GPU code of an artefact: device functions compiled in the builder to a cubin and to PTX."""

from dycl_tvm.codegen.cuda.images import Images, add_device_code, compile_images, image_source

__all__ = ["Images", "add_device_code", "compile_images", "image_source"]
