"""Benchmarks that write `eval/results/NAME.json`: stock LMDeploy measured beside ours."""
