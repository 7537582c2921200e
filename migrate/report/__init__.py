# SPDX-License-Identifier: Apache-2.0
"""Hides what a conversion answers with: counts that add up, and the note a target keeps."""
