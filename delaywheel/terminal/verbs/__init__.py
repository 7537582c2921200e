# SPDX-License-Identifier: Apache-2.0
"""One module for the verbs that belong together: what is asked, what is called, what is shown."""
