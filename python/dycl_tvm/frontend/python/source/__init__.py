# Licensed under the Apache License, Version 2.0; see LICENSE.
"""From source to rewritten code objects."""
