package v1beta1

// SetDefaults_FlunderSpec sets the type to Flunder if only a reference to a flunder is set.
func SetDefaults_FlunderSpec(spec *FlunderSpec) {
	if spec.ReferenceType == "" && spec.FlunderReference != "" && spec.FischerReference == "" {
		spec.ReferenceType = FlunderReferenceType
	}
}
