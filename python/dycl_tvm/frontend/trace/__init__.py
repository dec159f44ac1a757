# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What every front end shares: the record, values, the heap, joins."""
