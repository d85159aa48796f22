package v1alpha1

// SetDefaults_FlunderSpec sets the type of a reference without a type to Flunder.
func SetDefaults_FlunderSpec(spec *FlunderSpec) {
	if spec.Reference != "" && (spec.ReferenceType == nil || *spec.ReferenceType == "") {
		t := FlunderReferenceType
		spec.ReferenceType = &t
	}
}
