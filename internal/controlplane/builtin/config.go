package builtin

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/facts/core"
)

const redacted = "<secret contents redacted>"

func configMaps() *define.Kind {
	k := kind[corev1.ConfigMap, corev1.ConfigMapList]("configmaps", core.API,
		rules[corev1.ConfigMap]{validate: validateConfigMap, validateUpdate: validateConfigMapUpdate},
		column("Data", corev1.ConfigMap{}.SwaggerDoc()["data"], func(m *corev1.ConfigMap) any { return len(m.Data) + len(m.BinaryData) }), age(),
	)
	k.ShortNames, k.WithoutGeneration, k.Unconditional = []string{"cm"}, true, true
	return k
}

func validateConfigMap(m *corev1.ConfigMap) field.ErrorList {
	errs := objects.ValidateFinalizers(m.Finalizers)
	size := 0
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		errs = append(errs, validateKey("data", key)...)
		if _, ok := m.BinaryData[key]; ok {
			errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, "duplicate of key present in binaryData"))
		}
		size += len(m.Data[key])
	}
	for _, key := range slices.Sorted(maps.Keys(m.BinaryData)) {
		errs = append(errs, validateKey("binaryData", key)...)
		size += len(m.BinaryData[key])
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs
}

func validateKey(in, key string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsConfigMapKey(key) {
		errs = append(errs, field.Invalid(field.NewPath(in).Key(key), key, msg))
	}
	return errs
}

func validateConfigMapUpdate(m, old *corev1.ConfigMap) field.ErrorList {
	if !isSet(old.Immutable) {
		return nil
	}
	var errs field.ErrorList
	forbid := func(name string, changed bool) {
		if changed {
			errs = append(errs, field.Forbidden(field.NewPath(name), "field is immutable when `immutable` is set"))
		}
	}
	forbid("immutable", !isSet(m.Immutable))
	forbid("data", !maps.Equal(m.Data, old.Data))
	forbid("binaryData", !maps.EqualFunc(m.BinaryData, old.BinaryData, bytes.Equal))
	return errs
}

func isSet(b *bool) bool { return b != nil && *b }

func secrets() *define.Kind {
	doc := corev1.Secret{}.SwaggerDoc()
	k := kind[corev1.Secret, corev1.SecretList]("secrets", core.API,
		rules[corev1.Secret]{fill: fillSecret, validate: validateSecret, validateUpdate: validateSecretUpdate, warn: warnOfSecret},
		column("Type", doc["type"], func(s *corev1.Secret) any { return string(s.Type) }),
		column("Data", doc["data"], func(s *corev1.Secret) any { return len(s.Data) }), age(),
	)
	k.WithoutGeneration, k.Unconditional = true, true
	k.Selectable = []define.SelectableField{selectable("type", func(s *corev1.Secret) string { return string(s.Type) })}
	return k
}

// fillSecret also moves stringData, which is write-only, into data.
func fillSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

func validateSecret(s *corev1.Secret) field.ErrorList {
	errs := objects.ValidateFinalizers(s.Finalizers)
	data, size := field.NewPath("data"), 0
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		errs = append(errs, validateKey("data", key)...)
		size += len(s.Data[key])
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(data, "", corev1.MaxSecretSize))
	}
	return append(errs, validateTypeOf(s)...)
}

// validateTypeOf checks that the secret contains the data that its type requires.
func validateTypeOf(s *corev1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	require := func(key string) {
		errs = append(errs, field.Required(data.Key(key), ""))
	}
	document := func(key string) {
		value, ok := s.Data[key]
		if !ok {
			require(key)
		} else if err := json.Unmarshal(value, &map[string]any{}); err != nil {
			errs = append(errs, field.Invalid(data.Key(key), redacted, err.Error()))
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		document(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		document(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		_, username := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !username && !password {
			require(corev1.BasicAuthUsernameKey)
			require(corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			require(corev1.SSHAuthPrivateKey)
		}
	case corev1.SecretTypeTLS:
		for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
			if _, ok := s.Data[key]; !ok {
				require(key)
			}
		}
	}
	return errs
}

func validateSecretUpdate(s, old *corev1.Secret) field.ErrorList {
	errs := apivalidation.ValidateImmutableField(s.Type, old.Type, field.NewPath("type"))
	if !isSet(old.Immutable) {
		return errs
	}
	if !isSet(s.Immutable) {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), "field is immutable when `immutable` is set"))
	}
	if !apiequality.Semantic.DeepEqual(s.Data, old.Data) {
		errs = append(errs, field.Forbidden(field.NewPath("data"), "field is immutable when `immutable` is set"))
	}
	return errs
}

// warnOfSecret returns the error of a certificate, which is accepted nevertheless.
func warnOfSecret(s *corev1.Secret) []string {
	if s.Type != corev1.SecretTypeTLS {
		return nil
	}
	if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	return nil
}
