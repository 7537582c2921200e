# SPDX-License-Identifier: Apache-2.0
"""The Spark pipeline that turns level queues into wheel slots: plan, write, seal, verify."""
