# SPDX-License-Identifier: Apache-2.0
"""THE interface of all engines, the rules of their promises, and the loop around one."""
