"""CMQ's API 3.0: service ``tdmq``, version 2020-02-17, at ``/``; for the generated SDKs of Tencent Cloud."""
