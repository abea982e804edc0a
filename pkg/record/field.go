package record

import (
	"reflect"
	"slices"
	"strings"
)

// field is a known member of a record or of its value. Fields with a treatment of their
// own have a name here; plain columns follow, in the order of Columns.
type field uint8

const (
	fieldID field = iota
	fieldKey
	fieldRecordType
	fieldValueType
	fieldIntent
	fieldTimestamp
	fieldPartitionID
	fieldPosition
	fieldSourceRecordPosition
	fieldRecordVersion
	fieldBrokerVersion
	fieldRejectionType
	fieldRejectionReason
	fieldOperationReference
	fieldValue
	fieldRecords // marks a wrapper; an ordinary member within a record

	fieldBpmnProcessID // from here on: members of value
	fieldProcessDefinitionKey
	fieldProcessDefinitionVersion
	fieldProcessInstanceKey
	fieldElementID
	fieldElementInstanceKey
	fieldType
	fieldWorker
	fieldRetries
	fieldDeadline
	fieldErrorCode
	fieldErrorMessage
	fieldVariables
	fieldCustomHeaders
	fieldTenantID
	fieldBpmnElementType
	fieldErrorType
	fieldFlowScopeKey
	fieldParentProcessInstanceKey
	fieldParentElementInstanceKey
	fieldBpmnEventType
	fieldJobKind
	fieldJobKey
	fieldScopeKey
	fieldVersion         // another name of processDefinitionVersion, used when that is missing
	fieldTargetElementID // another name of elementId, used when that is missing

	namedFields
	firstOfValue = fieldBpmnProcessID

	maxFields          = 64 // bits of a set of fields
	fieldUnknown field = maxFields

	// Members of value that are not fields: masking of variables needs them.
	fieldVariableName  = fieldUnknown + 1
	fieldVariableValue = fieldUnknown + 2
)

// class is how a field is checked and converted.
type class uint8

const (
	classText        class = iota // a string; the text of a number will do
	classInteger                  // a whole number of 64 bits, or its decimal text
	classTime                     // like classInteger, or ISO 8601
	classObject                   // an object
	classAny                      // any JSON
	classLooseText                // like classText, but kept in extra when it is not
	classLooseNumber              // like classInteger, but kept in extra when it is not
	classes
)

// plain lists, for each class, the kinds that need no conversion.
var plain = [classes]uint16{
	classText:        1<<kindNull | 1<<kindString | 1<<kindEscaped | 1<<kindInt | 1<<kindNumber,
	classInteger:     1<<kindNull | 1<<kindInt,
	classTime:        1<<kindNull | 1<<kindInt,
	classObject:      1<<kindNull | 1<<kindObject,
	classAny:         anyKind,
	classLooseText:   anyKind,
	classLooseNumber: anyKind,
}

const anyKind = 1<<(kindArray+1) - 1

// exact lists, for each class, the kinds whose JSON the column reproduces.
var exact = [classes]uint16{
	classText:        1<<kindString | 1<<kindEscaped,
	classInteger:     1 << kindInt,
	classTime:        1 << kindInt,
	classObject:      1 << kindObject,
	classAny:         anyKind &^ (1 << kindNull),
	classLooseText:   1<<kindString | 1<<kindEscaped,
	classLooseNumber: 1 << kindInt,
}

type member struct {
	name  string
	class class
}

// spec describes a field.
type spec struct {
	member
	value bool // it is a member of value
}

// named are the fields with names, in the frozen order of problems and of extra.
var named = [namedFields]member{
	fieldID:          {"id", classText},
	fieldKey:         {"key", classInteger},
	fieldRecordType:  {"recordType", classText},
	fieldValueType:   {"valueType", classText},
	fieldIntent:      {"intent", classText},
	fieldTimestamp:   {"timestamp", classTime},
	fieldPartitionID: {"partitionId", classLooseNumber},
	fieldPosition:    {"position", classLooseNumber},

	fieldSourceRecordPosition: {"sourceRecordPosition", classLooseNumber},
	fieldRecordVersion:        {"recordVersion", classLooseNumber},
	fieldBrokerVersion:        {"brokerVersion", classLooseText},
	fieldRejectionType:        {"rejectionType", classLooseText},
	fieldRejectionReason:      {"rejectionReason", classLooseText},
	fieldOperationReference:   {"operationReference", classLooseNumber},

	fieldValue:   {"value", classObject},
	fieldRecords: {"records", classAny},

	fieldBpmnProcessID:            {"bpmnProcessId", classText},
	fieldProcessDefinitionKey:     {"processDefinitionKey", classInteger},
	fieldProcessDefinitionVersion: {"processDefinitionVersion", classInteger},
	fieldProcessInstanceKey:       {"processInstanceKey", classText},
	fieldElementID:                {"elementId", classText},
	fieldElementInstanceKey:       {"elementInstanceKey", classInteger},
	fieldType:                     {"type", classText},
	fieldWorker:                   {"worker", classText},
	fieldRetries:                  {"retries", classInteger},
	fieldDeadline:                 {"deadline", classTime},
	fieldErrorCode:                {"errorCode", classText},
	fieldErrorMessage:             {"errorMessage", classText},
	fieldVariables:                {"variables", classAny},
	fieldCustomHeaders:            {"customHeaders", classAny},
	fieldTenantID:                 {"tenantId", classLooseText},
	fieldBpmnElementType:          {"bpmnElementType", classLooseText},
	fieldErrorType:                {"errorType", classLooseText},
	fieldFlowScopeKey:             {"flowScopeKey", classLooseNumber},
	fieldParentProcessInstanceKey: {"parentProcessInstanceKey", classLooseNumber},
	fieldParentElementInstanceKey: {"parentElementInstanceKey", classLooseNumber},
	fieldBpmnEventType:            {"bpmnEventType", classLooseText},
	fieldJobKind:                  {"jobKind", classLooseText},
	fieldJobKey:                   {"jobKey", classLooseNumber},
	fieldScopeKey:                 {"scopeKey", classLooseNumber},
	fieldVersion:                  {"version", classLooseNumber},
	fieldTargetElementID:          {"targetElementId", classLooseText},
}

// maxColumns bounds the columns of one kind.
const maxColumns = maxFields

// columnType is a column, from the tags of Columns.
type columnType struct {
	name  string
	index int   // of the member of Columns
	time  bool  // ms since 1970
	field field // that it holds unchanged; fieldUnknown: none
}

// Derived from named and the tags of Columns.
var (
	specs, columnTypes = describe()
	bodyColumns        = inBody()

	outerNames, outerFields = fieldsOf(false) // members of a record, by name and as a set
	valueNames, valueFields = fieldsOf(true)  // members of its value, by name and as a set
)

// describe reads the tags of Columns. Members not in named become fields without a type
// check: a value that does not fit the column is kept in extra.
func describe() (specs [maxFields]spec, columns []columnType) {
	for f, m := range named {
		specs[f] = spec{m, field(f) >= firstOfValue}
	}
	next := len(named)
	of := reflect.TypeFor[Columns]()
	for i := range of.NumField() {
		name, is := of.Field(i).Tag.Lookup("column")
		if !is {
			continue
		}
		column := columnType{name: name, index: i, time: of.Field(i).Tag.Get("unit") == "ms", field: fieldUnknown}
		if path, is := of.Field(i).Tag.Lookup("member"); is {
			inner, value := strings.CutPrefix(path, "value.")
			at := slices.IndexFunc(specs[:next], func(s spec) bool { return s.name == inner && s.value == value })
			if at < 0 {
				class := classLooseText
				if of.Field(i).Type == reflect.TypeFor[NullInt64]() {
					class = classLooseNumber
				}
				at, specs[next] = next, spec{member{inner, class}, value}
				next++
			}
			column.field = field(at)
		}
		columns = append(columns, column)
	}
	return specs, columns
}

func fieldsOf(value bool) (byName map[string]field, set uint64) {
	byName = map[string]field{}
	if value {
		byName["name"], byName["value"] = fieldVariableName, fieldVariableValue
	}
	for f, s := range specs {
		if s.name != "" && s.value == value {
			byName[s.name] = field(f)
			set |= 1 << f
		}
	}
	return byName, set
}

// bodyColumn is a column in the bodies of messages, numbered by its place in bodyColumns, from 1
// on.
type bodyColumn struct {
	name  string
	index int   // of the member of Columns
	field field // that it stores unchanged; fieldUnknown: none
}

func inBody() (all []bodyColumn) {
	of := reflect.TypeFor[Columns]()
	for i := range of.NumField() {
		tag, f := of.Field(i).Tag, fieldUnknown
		if at := slices.IndexFunc(columnTypes, func(c columnType) bool { return c.index == i }); at >= 0 {
			f = columnTypes[at].field
		}
		if name := tag.Get("column") + tag.Get("body"); name != "" && tag.Get("from") == "" {
			all = append(all, bodyColumn{name, i, f})
		}
	}
	return all
}

// Column is one of Columns.
type Column struct {
	Name string // in flow.records
	Data any    // *LowCardinality, *StringColumn, *NullInt64, *[]int64, *[]uint16, *[]uint32 or *[]uint64
	Time bool   // Data is ms since 1970
}

// All are the columns of flow.records, each a pointer into c.
func (c *Columns) All() []Column {
	all := make([]Column, len(columnTypes))
	of := reflect.ValueOf(c).Elem()
	for i, column := range columnTypes {
		all[i] = Column{Name: column.name, Data: of.Field(column.index).Addr().Interface(), Time: column.time}
	}
	return all
}

// found is the columns of one Columns by type.
type found struct {
	texts   [maxColumns]*StringColumn
	symbols [maxColumns]*LowCardinality
	numbers [maxColumns]*NullInt64
	sizes   [3]int          // of these, used
	body    [maxColumns]any // in bodies: *LowCardinality, *StringColumn, *NullInt64, *[]int64 or *[]uint8

	of [maxFields + 1]column // the columns of fields
}

// column is the column of a field; all nil if the field has none, or shares it.
type column struct {
	symbol *LowCardinality
	number *NullInt64
	text   *StringColumn
}

// bind sets found after c was created or moved.
func (c *Columns) bind() {
	if c.bound == c {
		return
	}
	c.bound, c.found = c, found{}
	to, of := &c.found, reflect.ValueOf(c).Elem()
	for i, one := range bodyColumns {
		to.body[i] = of.Field(one.index).Addr().Interface()
		switch data := to.body[i].(type) {
		case *StringColumn:
			to.texts[to.sizes[0]] = data
			to.sizes[0]++
			to.of[one.field] = column{text: data}
		case *LowCardinality:
			to.symbols[to.sizes[1]] = data
			to.sizes[1]++
			to.of[one.field] = column{symbol: data}
		case *NullInt64:
			to.numbers[to.sizes[2]] = data
			to.sizes[2]++
			to.of[one.field] = column{number: data}
		}
	}
	to.symbols[to.sizes[1]] = &c.Source
	to.sizes[1]++
	to.of[fieldUnknown] = column{}
}

func (c *Columns) texts() []*StringColumn {
	c.bind()
	return c.found.texts[:c.found.sizes[0]]
}

func (c *Columns) symbols() []*LowCardinality {
	c.bind()
	return c.found.symbols[:c.found.sizes[1]]
}

func (c *Columns) numbers() []*NullInt64 {
	c.bind()
	return c.found.numbers[:c.found.sizes[2]]
}
