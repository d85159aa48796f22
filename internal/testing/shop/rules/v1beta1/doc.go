// Package v1beta1 is the other version of an API whose rules are tags, one or two of each kind.
//
// +k8s:conversion-gen=github.com/annexapi/annex/internal/testing/shop/rules/v1
// +groupName=rules.example.com
package v1beta1
