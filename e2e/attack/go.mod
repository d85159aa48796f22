module github.com/annexapi/annex/e2e/attack

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	golang.org/x/net v0.59.0
	sigs.k8s.io/yaml v1.6.0
)

require (
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	golang.org/x/text v0.42.0 // indirect
)
