# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a PrimFunc does, read from its loops: element by element, channel by channel, over a window, or as a reduction."""
