package v1alpha1

// SetDefaults_FlunderSpec takes a reference of no type for one to a flunder.
func SetDefaults_FlunderSpec(spec *FlunderSpec) {
	if spec.Reference != "" && (spec.ReferenceType == nil || *spec.ReferenceType == "") {
		t := FlunderReferenceType
		spec.ReferenceType = &t
	}
}
