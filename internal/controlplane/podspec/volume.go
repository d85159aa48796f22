package podspec

import (
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateVolumes validates the volumes and collects the valid ones, which containers may refer to.
func (c *check) validateVolumes(at *field.Path) {
	c.volumes = map[string]*corev1.VolumeSource{}
	for i := range c.spec.Volumes {
		v, at := &c.spec.Volumes[i], at.Index(i)
		before := len(c.errs)
		c.volumeSource(at, v)
		c.label(at.Child("name"), v.Name)
		if _, known := c.volumes[v.Name]; known {
			c.add(field.Duplicate(at.Child("name"), v.Name))
		}
		if len(c.errs) == before {
			c.volumes[v.Name] = &v.VolumeSource
		}
	}
}

// volumeType is a type of volumes.
type volumeType struct {
	// at is the path of its errors, and second the path of the error that the volume already has a type.
	at, second string
	of         func(*corev1.VolumeSource) bool
	validate   func(*check, *field.Path, *corev1.VolumeSource)
}

// typeOf returns a type from its name, its field and its validation.
func typeOf[T any](name string, of func(*corev1.VolumeSource) *T, validate func(*check, *field.Path, *T)) volumeType {
	return volumeType{
		at: name, second: name,
		of:       func(v *corev1.VolumeSource) bool { return of(v) != nil },
		validate: func(c *check, at *field.Path, v *corev1.VolumeSource) { validate(c, at, of(v)) },
	}
}

// misnamed returns a type with the other names that some of kube-apiserver's messages contain.
func misnamed(at, second string, t volumeType) volumeType {
	t.at, t.second = at, second
	return t
}

// volumeTypes are all types. The first type of a volume is validated, and any further one is an error.
var volumeTypes = []volumeType{
	typeOf("emptyDir", func(v *corev1.VolumeSource) *corev1.EmptyDirVolumeSource { return v.EmptyDir }, (*check).emptyDir),
	typeOf("hostPath", func(v *corev1.VolumeSource) *corev1.HostPathVolumeSource { return v.HostPath }, (*check).hostPath),
	typeOf("gitRepo", func(v *corev1.VolumeSource) *corev1.GitRepoVolumeSource { return v.GitRepo },
		func(c *check, at *field.Path, v *corev1.GitRepoVolumeSource) {
			c.filled(at.Child("repository"), v.Repository)
			c.descending(at.Child("directory"), v.Directory)
		}),
	misnamed(
		"persistentDisk",
		"gcePersistentDisk",
		typeOf("", func(v *corev1.VolumeSource) *corev1.GCEPersistentDiskVolumeSource { return v.GCEPersistentDisk },
			func(c *check, at *field.Path, v *corev1.GCEPersistentDiskVolumeSource) {
				c.filled(at.Child("pdName"), v.PDName)
				c.partition(at.Child("partition"), v.Partition)
			}),
	),
	typeOf("awsElasticBlockStore", func(v *corev1.VolumeSource) *corev1.AWSElasticBlockStoreVolumeSource { return v.AWSElasticBlockStore },
		func(c *check, at *field.Path, v *corev1.AWSElasticBlockStoreVolumeSource) {
			c.filled(at.Child("volumeID"), v.VolumeID)
			c.partition(at.Child("partition"), v.Partition)
		}),
	typeOf(
		"secret",
		func(v *corev1.VolumeSource) *corev1.SecretVolumeSource { return v.Secret },
		func(c *check, at *field.Path, v *corev1.SecretVolumeSource) {
			c.filled(at.Child("secretName"), v.SecretName)
			c.mode(at.Child("defaultMode"), v.DefaultMode)
			c.user(at.Child("defaultUser"), v.DefaultUser)
			c.keys(at.Child("items"), v.Items)
		},
	),
	typeOf(
		"nfs",
		func(v *corev1.VolumeSource) *corev1.NFSVolumeSource { return v.NFS },
		func(c *check, at *field.Path, v *corev1.NFSVolumeSource) {
			c.filled(at.Child("server"), v.Server)
			c.filled(at.Child("path"), v.Path)
			if !strings.HasPrefix(v.Path, "/") {
				c.invalid(at.Child("path"), v.Path, "must be an absolute path")
			}
		},
	),
	typeOf("iscsi", func(v *corev1.VolumeSource) *corev1.ISCSIVolumeSource { return v.ISCSI }, (*check).iscsi),
	typeOf("glusterfs", func(v *corev1.VolumeSource) *corev1.GlusterfsVolumeSource { return v.Glusterfs },
		func(c *check, at *field.Path, v *corev1.GlusterfsVolumeSource) {
			c.filled(at.Child("endpoints"), v.EndpointsName)
			c.filled(at.Child("path"), v.Path)
		}),
	typeOf("flocker", func(v *corev1.VolumeSource) *corev1.FlockerVolumeSource { return v.Flocker }, (*check).flocker),
	typeOf("persistentVolumeClaim", func(v *corev1.VolumeSource) *corev1.PersistentVolumeClaimVolumeSource { return v.PersistentVolumeClaim },
		func(c *check, at *field.Path, v *corev1.PersistentVolumeClaimVolumeSource) {
			c.filled(at.Child("claimName"), v.ClaimName)
		}),
	typeOf(
		"rbd",
		func(v *corev1.VolumeSource) *corev1.RBDVolumeSource { return v.RBD },
		func(c *check, at *field.Path, v *corev1.RBDVolumeSource) {
			c.some(at.Child("monitors"), v.CephMonitors)
			c.filled(at.Child("image"), v.RBDImage)
		},
	),
	typeOf(
		"cinder",
		func(v *corev1.VolumeSource) *corev1.CinderVolumeSource { return v.Cinder },
		func(c *check, at *field.Path, v *corev1.CinderVolumeSource) {
			c.filled(at.Child("volumeID"), v.VolumeID)
			c.secretRef(at.Child("secretRef"), v.SecretRef)
		},
	),
	misnamed("cephfs", "cephFS", typeOf("", func(v *corev1.VolumeSource) *corev1.CephFSVolumeSource { return v.CephFS },
		func(c *check, at *field.Path, v *corev1.CephFSVolumeSource) { c.some(at.Child("monitors"), v.Monitors) })),
	typeOf("quobyte", func(v *corev1.VolumeSource) *corev1.QuobyteVolumeSource { return v.Quobyte }, (*check).quobyte),
	misnamed("downwardAPI", "downwarAPI", typeOf("", func(v *corev1.VolumeSource) *corev1.DownwardAPIVolumeSource { return v.DownwardAPI },
		func(c *check, at *field.Path, v *corev1.DownwardAPIVolumeSource) {
			c.mode(at.Child("defaultMode"), v.DefaultMode)
			c.user(at.Child("defaultUser"), v.DefaultUser)
			for i := range v.Items {
				c.downwardFile(at, &v.Items[i])
			}
		})),
	typeOf("fc", func(v *corev1.VolumeSource) *corev1.FCVolumeSource { return v.FC }, (*check).fibreChannel),
	typeOf("flexVolume", func(v *corev1.VolumeSource) *corev1.FlexVolumeSource { return v.FlexVolume }, (*check).flexVolume),
	typeOf("configMap", func(v *corev1.VolumeSource) *corev1.ConfigMapVolumeSource { return v.ConfigMap },
		func(c *check, at *field.Path, v *corev1.ConfigMapVolumeSource) {
			c.filled(at.Child("name"), v.Name)
			c.mode(at.Child("defaultMode"), v.DefaultMode)
			c.user(at.Child("defaultUser"), v.DefaultUser)
			c.keys(at.Child("items"), v.Items)
		}),
	typeOf("azureFile", func(v *corev1.VolumeSource) *corev1.AzureFileVolumeSource { return v.AzureFile },
		func(c *check, at *field.Path, v *corev1.AzureFileVolumeSource) {
			c.filled(at.Child("secretName"), v.SecretName)
			c.filled(at.Child("shareName"), v.ShareName)
		}),
	typeOf("vsphereVolume", func(v *corev1.VolumeSource) *corev1.VsphereVirtualDiskVolumeSource { return v.VsphereVolume },
		func(c *check, at *field.Path, v *corev1.VsphereVirtualDiskVolumeSource) {
			c.filled(at.Child("volumePath"), v.VolumePath)
		}),
	typeOf("photonPersistentDisk", func(v *corev1.VolumeSource) *corev1.PhotonPersistentDiskVolumeSource { return v.PhotonPersistentDisk },
		func(c *check, at *field.Path, v *corev1.PhotonPersistentDiskVolumeSource) {
			c.filled(at.Child("pdID"), v.PdID)
		}),
	typeOf("portworxVolume", func(v *corev1.VolumeSource) *corev1.PortworxVolumeSource { return v.PortworxVolume },
		func(c *check, at *field.Path, v *corev1.PortworxVolumeSource) {
			c.filled(at.Child("volumeID"), v.VolumeID)
		}),
	typeOf("azureDisk", func(v *corev1.VolumeSource) *corev1.AzureDiskVolumeSource { return v.AzureDisk }, (*check).azureDisk),
	typeOf("storageos", func(v *corev1.VolumeSource) *corev1.StorageOSVolumeSource { return v.StorageOS },
		func(c *check, at *field.Path, v *corev1.StorageOSVolumeSource) {
			c.label(at.Child("volumeName"), v.VolumeName)
			if v.VolumeNamespace != "" {
				c.label(at.Child("volumeNamespace"), v.VolumeNamespace)
			}
			c.secretRef(at.Child("secretRef"), v.SecretRef)
		}),
	typeOf("projected", func(v *corev1.VolumeSource) *corev1.ProjectedVolumeSource { return v.Projected }, (*check).projected),
	typeOf("scaleIO", func(v *corev1.VolumeSource) *corev1.ScaleIOVolumeSource { return v.ScaleIO },
		func(c *check, at *field.Path, v *corev1.ScaleIOVolumeSource) {
			c.filled(at.Child("gateway"), v.Gateway)
			c.filled(at.Child("system"), v.System)
			c.filled(at.Child("volumeName"), v.VolumeName)
		}),
	typeOf("csi", func(v *corev1.VolumeSource) *corev1.CSIVolumeSource { return v.CSI }, (*check).csi),
	typeOf("ephemeral", func(v *corev1.VolumeSource) *corev1.EphemeralVolumeSource { return v.Ephemeral },
		func(c *check, at *field.Path, v *corev1.EphemeralVolumeSource) {
			c.claimTemplate(at.Child("volumeClaimTemplate"), v.VolumeClaimTemplate)
		}),
	typeOf(
		"image",
		func(v *corev1.VolumeSource) *corev1.ImageVolumeSource { return v.Image },
		func(c *check, at *field.Path, v *corev1.ImageVolumeSource) {
			c.filled(at.Child("reference"), v.Reference)
			c.pullPolicy(at.Child("pullPolicy"), v.PullPolicy)
		},
	),
}

func (c *check) volumeSource(at *field.Path, v *corev1.Volume) {
	n := 0
	for _, t := range volumeTypes {
		switch {
		case !t.of(&v.VolumeSource):
			continue
		case n > 0:
			c.forbidden(at.Child(t.second), "may not specify more than 1 volume type")
		default:
			t.validate(c, at.Child(t.at), &v.VolumeSource)
		}
		n++
	}
	if n == 0 {
		c.required(at, "must specify a volume type")
	}
	if v.ISCSI != nil && v.ISCSI.InitiatorName != nil && len(v.Name+":"+v.ISCSI.TargetPortal) > 64 {
		c.invalid(at.Child("name"), v.Name, "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if "+
			"iscsi.initiatorName is specified.")
	}
}

func (c *check) some(at *field.Path, list []string) {
	if len(list) == 0 {
		c.required(at, "")
	}
}

func (c *check) secretRef(at *field.Path, ref *corev1.LocalObjectReference) {
	if ref != nil {
		c.filled(at.Child("name"), ref.Name)
	}
}

// partition accepts 0, although the message excludes it.
func (c *check) partition(at *field.Path, partition int32) {
	if partition < 0 || partition > 255 {
		c.invalid(at, partition, validation.InclusiveRangeError(1, 255))
	}
}

func (c *check) emptyDir(at *field.Path, v *corev1.EmptyDirVolumeSource) {
	if v.SizeLimit != nil && v.SizeLimit.Sign() < 0 {
		c.forbidden(at.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity")
	}
}

func (c *check) hostPath(at *field.Path, v *corev1.HostPathVolumeSource) {
	if !c.filled(at.Child("path"), v.Path) {
		return
	}
	c.noBacksteps(at.Child("path"), v.Path)
	if v.Type != nil {
		oneOf(c, at.Child("type"), *v.Type, corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev, corev1.HostPathDirectory,
			corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket)
	}
}

func (c *check) iscsi(at *field.Path, v *corev1.ISCSIVolumeSource) {
	c.filled(at.Child("targetPortal"), v.TargetPortal)
	if c.filled(at.Child("iqn"), v.IQN) {
		c.initiator(at.Child("iqn"), v.IQN)
	}
	between(c, at.Child("lun"), v.Lun, 0, 255)
	if (v.DiscoveryCHAPAuth || v.SessionCHAPAuth) && v.SecretRef == nil {
		c.required(at.Child("secretRef"), "")
	}
	if v.InitiatorName != nil {
		c.initiator(at.Child("initiatorname"), *v.InitiatorName)
	}
}

func (c *check) initiator(at *field.Path, name string) {
	for prefix, format := range initiators {
		if strings.HasPrefix(name, prefix) {
			if !format.MatchString(name) {
				c.invalid(at, name, "must be valid format")
			}
			return
		}
	}
	c.invalid(at, name, "must be valid format starting with iqn, eui, or naa")
}

func (c *check) flocker(at *field.Path, v *corev1.FlockerVolumeSource) {
	switch {
	case v.DatasetName == "" && v.DatasetUUID == "":
		c.required(at, "one of datasetName and datasetUUID is required")
	case v.DatasetName != "" && v.DatasetUUID != "":
		c.invalid(at, "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(v.DatasetName, "/") {
		c.invalid(at.Child("datasetName"), v.DatasetName, "must not contain '/'")
	}
}

func (c *check) quobyte(at *field.Path, v *corev1.QuobyteVolumeSource) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case v.Registry == "":
		c.required(at.Child("registry"), pairs)
	case len(v.Tenant) > 64:
		c.required(at.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters")
	default:
		for pair := range strings.SplitSeq(v.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				c.invalid(at.Child("registry"), v.Registry, pairs)
			}
		}
	}
	c.filled(at.Child("volume"), v.Volume)
}

func (c *check) fibreChannel(at *field.Path, v *corev1.FCVolumeSource) {
	names := at.Child("targetWWNs")
	switch {
	case len(v.TargetWWNs) == 0 && len(v.WWIDs) == 0:
		c.required(names, "must specify either targetWWNs or wwids, but not both")
	case len(v.TargetWWNs) > 0 && len(v.WWIDs) > 0:
		c.invalid(names, v.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	if len(v.TargetWWNs) == 0 {
		return
	}
	if v.Lun == nil {
		c.required(at.Child("lun"), "lun is required if targetWWNs is specified")
		return
	}
	between(c, at.Child("lun"), *v.Lun, 0, 255)
}

func (c *check) flexVolume(at *field.Path, v *corev1.FlexVolumeSource) {
	c.filled(at.Child("driver"), v.Driver)
	for _, key := range sorted(v.Options) {
		domain, _, _ := strings.Cut(key, "/")
		if domain = "." + strings.ToLower(domain); strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			c.invalid(at.Child("options").Key(key), key, "kubernetes.io and k8s.io namespaces are reserved")
		}
	}
}

func (c *check) azureDisk(at *field.Path, v *corev1.AzureDiskVolumeSource) {
	c.filled(at.Child("diskName"), v.DiskName)
	c.filled(at.Child("diskURI"), v.DataDiskURI)
	if v.CachingMode != nil {
		oneOf(
			c,
			at.Child("cachingMode"),
			*v.CachingMode,
			corev1.AzureDataDiskCachingNone,
			corev1.AzureDataDiskCachingReadOnly,
			corev1.AzureDataDiskCachingReadWrite,
		)
	}
	if v.Kind == nil {
		return
	}
	oneOf(c, at.Child("kind"), *v.Kind, corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)
	prefix, like := "https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
	if *v.Kind == corev1.AzureManagedDisk {
		prefix, like = "/subscriptions/", "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
	}
	if !strings.HasPrefix(v.DataDiskURI, prefix) {
		c.add(field.NotSupported(at.Child("diskURI"), v.DataDiskURI, []string{like}))
	}
}

func (c *check) csi(at *field.Path, v *corev1.CSIVolumeSource) {
	if driver := at.Child("driver"); c.filled(driver, v.Driver) {
		if len(v.Driver) > 63 {
			c.add(field.TooLong(driver, "", 63))
		}
		c.each(driver, v.Driver, validation.IsDNS1123Subdomain(strings.ToLower(v.Driver)))
	}
	if ref := v.NodePublishSecretRef; ref != nil && c.filled(at.Child("nodePublishSecretRef", "name"), ref.Name) {
		c.each(at.Child("name"), ref.Name, subdomain(ref.Name))
	}
}

// keys validates keys of a config map or secret, with the files for them.
func (c *check) keys(at *field.Path, items []corev1.KeyToPath) {
	for i, item := range items {
		at := at.Index(i)
		c.filled(at.Child("key"), item.Key)
		c.filled(at.Child("path"), item.Path)
		c.file(at.Child("path"), item.Path)
		c.mode(at.Child("mode"), item.Mode)
		c.user(at.Child("user"), item.User)
	}
}

func (c *check) downwardFile(at *field.Path, f *corev1.DownwardAPIVolumeFile) {
	c.filled(at.Child("path"), f.Path)
	c.file(at.Child("path"), f.Path)
	switch {
	case f.FieldRef != nil:
		c.fieldRef(at.Child("fieldRef"), f.FieldRef, fileFields)
		if f.ResourceFieldRef != nil {
			c.invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case f.ResourceFieldRef != nil:
		c.resourceRef(at.Child("resourceFieldRef"), f.ResourceFieldRef, true)
	default:
		c.required(at, "one of fieldRef and resourceFieldRef is required")
	}
	c.mode(at.Child("mode"), f.Mode)
	c.user(at.Child("user"), f.User)
}

func (c *check) mounts(at *field.Path, container *corev1.Container) {
	var paths []string
	for i := range container.VolumeMounts {
		m, each := &container.VolumeMounts[i], at.Index(i)
		name, path := each.Child("name"), each.Child("mountPath")
		c.filled(name, m.Name)
		if c.volumes[m.Name] == nil {
			c.add(field.NotFound(name, m.Name))
		}
		c.filled(path, m.MountPath)
		if slices.Contains(paths, m.MountPath) {
			c.invalid(path, m.MountPath, "must be unique")
		}
		paths = append(paths, m.MountPath)
		devices := lastOf(container.VolumeDevices, func(d corev1.VolumeDevice) (string, string) { return d.Name, d.DevicePath })
		if _, ok := devices[m.Name]; ok {
			c.invalid(name, m.Name, "must not already exist in volumeDevices")
		}
		if slices.Contains(sortedValues(devices), m.MountPath) {
			c.invalid(path, m.MountPath, "must not already exist as a path in volumeDevices")
		}
		if m.SubPath != "" {
			c.descending(at.Child("subPath"), m.SubPath)
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				c.invalid(each.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive")
			}
			c.descending(at.Child("subPathExpr"), m.SubPathExpr)
		}
		c.propagation(at.Child("mountPropagation"), m, container)
		c.recursiveReadOnly(at.Child("recursiveReadOnly"), m)
	}
}

func (c *check) propagation(at *field.Path, m *corev1.VolumeMount, container *corev1.Container) {
	if m.MountPropagation == nil {
		return
	}
	oneOf(
		c,
		at,
		*m.MountPropagation,
		corev1.MountPropagationBidirectional,
		corev1.MountPropagationHostToContainer,
		corev1.MountPropagationNone,
	)
	privileged := container.SecurityContext != nil && is(container.SecurityContext.Privileged, true)
	if *m.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
		c.forbidden(at, "Bidirectional mount propagation is available only to privileged containers")
	}
}

func (c *check) recursiveReadOnly(at *field.Path, m *corev1.VolumeMount) {
	if m.RecursiveReadOnly == nil {
		return
	}
	oneOf(c, at, *m.RecursiveReadOnly, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)
	if *m.RecursiveReadOnly != corev1.RecursiveReadOnlyEnabled && *m.RecursiveReadOnly != corev1.RecursiveReadOnlyIfPossible {
		return
	}
	if !m.ReadOnly {
		c.forbidden(at, "may only be specified when readOnly is true")
	}
	if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
		c.forbidden(at, "may only be specified when mountPropagation is None or not specified")
	}
}

// devices validates block devices of a container.
func (c *check) devices(at *field.Path, container *corev1.Container) {
	var names, paths []string
	mounts := lastOf(container.VolumeMounts, func(m corev1.VolumeMount) (string, string) { return m.Name, m.MountPath })
	for i, d := range container.VolumeDevices {
		name, path := at.Index(i).Child("name"), at.Index(i).Child("devicePath")
		c.filled(name, d.Name)
		if slices.Contains(names, d.Name) {
			c.invalid(name, d.Name, "must be unique")
		}
		switch v := c.volumes[d.Name]; {
		case v == nil:
			c.add(field.NotFound(name, d.Name))
		case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
			c.invalid(name, d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode")
		}
		c.filled(path, d.DevicePath)
		if slices.Contains(paths, d.DevicePath) {
			c.invalid(path, d.DevicePath, "must be unique")
		}
		if steps(d.DevicePath) {
			c.invalid(path, d.DevicePath, "can not contain backsteps ('..')")
		} else {
			paths = append(paths, d.DevicePath)
		}
		if _, ok := mounts[d.Name]; ok {
			c.invalid(name, d.Name, "must not already exist in volumeMounts")
		}
		if slices.Contains(sortedValues(mounts), d.DevicePath) {
			c.invalid(path, d.DevicePath, "must not already exist as a path in volumeMounts")
		}
		if d.Name != "" {
			names = append(names, d.Name)
		}
	}
}

// lastOf returns the paths of a list by name. If a name is repeated, the last path counts.
func lastOf[T any](list []T, of func(T) (name, path string)) map[string]string {
	paths := map[string]string{}
	for _, item := range list {
		name, path := of(item)
		paths[name] = path
	}
	return paths
}

func sortedValues(m map[string]string) []string {
	var values []string
	for _, key := range sorted(m) {
		values = append(values, m[key])
	}
	return values
}
