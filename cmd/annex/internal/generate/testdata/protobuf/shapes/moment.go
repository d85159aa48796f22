package shapes

func (m *Moment) leaf() *Leaf { return &Leaf{Name: m.At} }

// Size returns how many bytes m has in protobuf.
func (m *Moment) Size() int { return m.leaf().Size() }

// Marshal returns m in protobuf.
func (m *Moment) Marshal() ([]byte, error) { return m.leaf().Marshal() }

// MarshalTo writes m to the start of data.
func (m *Moment) MarshalTo(data []byte) (int, error) { return m.leaf().MarshalTo(data) }

// MarshalToSizedBuffer writes m to the end of data.
func (m *Moment) MarshalToSizedBuffer(data []byte) (int, error) {
	return m.leaf().MarshalToSizedBuffer(data)
}

// Unmarshal reads m.
func (m *Moment) Unmarshal(data []byte) error {
	var l Leaf
	err := l.Unmarshal(data)
	m.At = l.Name
	return err
}
