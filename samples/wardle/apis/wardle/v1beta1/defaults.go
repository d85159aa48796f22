package v1beta1

// SetDefaults_FlunderSpec lets a lone reference to a flunder speak for itself.
func SetDefaults_FlunderSpec(spec *FlunderSpec) {
	if spec.ReferenceType == "" && spec.FlunderReference != "" && spec.FischerReference == "" {
		spec.ReferenceType = FlunderReferenceType
	}
}
