package record

// Append decodes every record of a message into one row each. On error, a
// *BadRecordError, the columns are exactly as before.
func (c *Columns) Append(m *Message) error {
	return c.AppendExcept(m, func(int) bool { return false })
}

// AppendExcept is Append without the records that skip names by their index.
// Those only have to be valid JSON.
func (c *Columns) AppendExcept(m *Message, skip func(index int) bool) error {
	before := c.mark()
	if bad := c.append(m, skip, func(bad *BadRecordError) *BadRecordError { return bad }); bad != nil {
		c.truncate(before)
		return bad
	}
	return nil
}

// AppendGood is Append of the records that can be decoded; it returns the
// others. The error, a *BadRecordError, is for a message that is broken as a
// whole: then the columns are exactly as before, and nothing is returned.
func (c *Columns) AppendGood(m *Message) (bad []*BadRecordError, err error) {
	before := c.mark()
	broken := c.append(m, func(int) bool { return false }, func(one *BadRecordError) *BadRecordError {
		bad = append(bad, one)
		return nil
	})
	if broken != nil {
		c.truncate(before)
		return nil, broken
	}
	return bad, nil
}

// append adds the records of a message that skip does not name. Of a record
// that is bad, aside says whether it ends there.
func (c *Columns) append(m *Message, skip func(int) bool, aside func(*BadRecordError) *BadRecordError) *BadRecordError {
	r := &c.reader
	defer func() { r.b = nil }() // it may be the message's
	if bad := r.open(m); bad != nil {
		return bad
	}
	received := max(m.Received.UnixMilli(), 0)
	c.source = append(c.source[:0], m.Source...)
	for {
		more, bad := r.advance(m)
		if bad != nil || !more {
			return bad
		}
		if skip(r.index) {
			bad = r.pass(m)
		} else if bad = r.read(m); bad == nil {
			c.row(m, received)
		} else if bad.Index >= 0 {
			bad = aside(bad)
		}
		if bad != nil {
			return r.worst(m, bad)
		}
	}
}

// row adds the record just read. Nothing can fail any more.
func (c *Columns) row(m *Message, received int64) {
	c.ReceivedAt = append(c.ReceivedAt, received)
	c.Lane = append(c.Lane, uint16(m.Lane))
	c.Incarnation = append(c.Incarnation, m.Incarnation)
	c.StreamSeq = append(c.StreamSeq, m.Seq)
	c.StreamIdx = append(c.StreamIdx, uint32(c.reader.index))
	c.Source.append(c.source)

	r := &c.reader
	var left fieldSet // what no column takes, for extra
	c.TS = append(c.TS, r.timestamp(received, &left))
	key, _ := r.integer(r.get(fieldKey))
	c.Key = append(c.Key, key)
	c.position(&left)
	c.identity()
	c.RecordType.append(r.text(r.get(fieldRecordType)))
	c.ValueType.append(r.text(r.get(fieldValueType)))
	c.Intent.append(r.text(r.get(fieldIntent)))
	c.RecordVersion.appendLoose(r, fieldRecordVersion, &left)
	c.BrokerVersion.append(r.looseText(fieldBrokerVersion, &left))
	c.RejectionType.append(r.looseText(fieldRejectionType, &left))
	c.RejectionReason.append(r.looseText(fieldRejectionReason, &left))
	c.OperationReference.appendLoose(r, fieldOperationReference, &left)

	c.TenantID.append(r.looseText(fieldTenantID, &left))
	c.BpmnProcessID.append(r.text(r.get(fieldBpmnProcessID)))
	c.integerOrNull(&c.ProcessDefinitionKey, r.get(fieldProcessDefinitionKey))
	c.version(&left)
	c.ProcessInstanceKey.append(r.text(r.get(fieldProcessInstanceKey)))
	c.element(&left)
	c.integerOrNull(&c.ElementInstanceKey, r.get(fieldElementInstanceKey))
	c.BpmnElementType.append(r.looseText(fieldBpmnElementType, &left))
	c.BpmnEventType.append(r.looseText(fieldBpmnEventType, &left))
	c.FlowScopeKey.appendLoose(r, fieldFlowScopeKey, &left)
	c.ScopeKey.appendLoose(r, fieldScopeKey, &left)
	c.ParentProcessInstanceKey.appendLoose(r, fieldParentProcessInstanceKey, &left)
	c.ParentElementInstanceKey.appendLoose(r, fieldParentElementInstanceKey, &left)
	c.JobType.append(r.text(r.get(fieldType)))
	c.Worker.append(r.text(r.get(fieldWorker)))
	c.integerOrNull(&c.Retries, r.get(fieldRetries))
	c.deadline()
	c.JobKind.append(r.looseText(fieldJobKind, &left))
	c.JobKey.appendLoose(r, fieldJobKey, &left)
	c.ErrorType.append(r.looseText(fieldErrorType, &left))
	c.ErrorCode.append(r.text(r.get(fieldErrorCode)))
	c.ErrorMessage.append(r.text(r.get(fieldErrorMessage)))
	c.Variables.append(r.json(fieldVariables))
	c.CustomHeaders.append(r.json(fieldCustomHeaders))
	if r.seen&(1<<fieldRecords) != 0 {
		left.add(fieldRecords)
	}
	c.extra(left)
}

// fieldSet is a set of fields, one bit each.
type fieldSet uint64

func (s *fieldSet) add(f field) { *s |= 1 << f }

// position adds partition and position, which an id like 1-7554 tells when they
// are not given, and the position of the record that caused this one.
func (c *Columns) position(left *fieldSet) {
	r := &c.reader
	partition, ok1 := r.looseInteger(fieldPartitionID, left)
	position, ok2 := r.looseInteger(fieldPosition, left)
	if !ok1 || !ok2 {
		first, second := splitID(r.text(r.get(fieldID)))
		if !ok1 {
			partition = first
		}
		if !ok2 {
			position = second
		}
	}
	c.PartitionID = append(c.PartitionID, partition)
	c.Position = append(c.Position, position)
	c.positioned = ok1 && ok2 && partition >= 1 && position >= 1

	if source, ok := r.looseInteger(fieldSourceRecordPosition, left); ok {
		c.SourceRecordOffset.append(source - position)
	} else {
		c.SourceRecordOffset.appendNull()
	}
}

// version adds the version of the process, which process instances call
// version and jobs processDefinitionVersion.
func (c *Columns) version(left *fieldSet) {
	r := &c.reader
	v := r.get(fieldProcessDefinitionVersion)
	if v.kind > kindNull {
		if r.get(fieldVersion).kind > kindNull {
			left.add(fieldVersion)
		}
		c.integerOrNull(&c.Version, v)
		return
	}
	c.Version.appendLoose(r, fieldVersion, left)
}

// element adds the id of the element, which timers call targetElementId.
func (c *Columns) element(left *fieldSet) {
	r := &c.reader
	v := r.get(fieldElementID)
	if v.kind > kindNull {
		if r.get(fieldTargetElementID).kind > kindNull {
			left.add(fieldTargetElementID)
		}
		c.ElementID.append(r.text(v))
		return
	}
	c.ElementID.append(r.looseText(fieldTargetElementID, left))
}

func (c *Columns) deadline() {
	if ms, code := c.reader.time(c.reader.get(fieldDeadline)); code == "" {
		c.Deadline.append(ms)
	} else {
		c.Deadline.appendNull()
	}
}

func (c *Columns) integerOrNull(column *NullInt64, v value) {
	if n, code := c.reader.integer(v); code == "" {
		column.append(n)
	} else {
		column.appendNull()
	}
}

// timestamp returns the time of the record, or 0 when it has none that can be
// right.
func (r *reader) timestamp(received int64, left *fieldSet) int64 {
	v := r.get(fieldTimestamp)
	if v.kind <= kindNull {
		return 0
	}
	ms, _ := r.time(v)
	if plausible(ms, received) {
		return ms
	}
	left.add(fieldTimestamp)
	return 0
}

// looseText returns the text of a field that may have any type.
func (r *reader) looseText(f field, left *fieldSet) []byte {
	v := r.get(f)
	switch v.kind {
	case kindBool, kindObject, kindArray:
		left.add(f)
	}
	return r.text(v)
}

// looseInteger returns the number in a field that may have any type.
func (r *reader) looseInteger(f field, left *fieldSet) (int64, bool) {
	v := r.get(f)
	if v.kind <= kindNull {
		return 0, false
	}
	n, code := r.integer(v)
	if code != "" {
		left.add(f)
	}
	return n, code == ""
}

// appendLoose adds the number in a field that may have any type.
func (n *NullInt64) appendLoose(r *reader, f field, left *fieldSet) {
	if v, ok := r.looseInteger(f, left); ok {
		n.append(v)
	} else {
		n.appendNull()
	}
}

// json returns the JSON of a field as it was sent.
func (r *reader) json(f field) []byte {
	v := r.get(f)
	if v.kind <= kindNull {
		return emptyObject
	}
	return r.raw(v)
}

var emptyObject = []byte("{}")
