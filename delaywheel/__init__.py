# SPDX-License-Identifier: Apache-2.0
"""The front door: what users import, and the command line; nothing below imports it."""
