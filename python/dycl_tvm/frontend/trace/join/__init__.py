# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Making one state of several paths."""
