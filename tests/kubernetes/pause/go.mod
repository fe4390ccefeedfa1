module sluice/tests/kubernetes/pause

go 1.24.0
