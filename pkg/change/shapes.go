package change

// The shapes of the specification. A test compares them with its tables.
var (
	UserShape = &Shape{Name: "User", Members: map[string]Type{
		"ak":                 text,
		"sk":                 text,
		"company":            text,
		"createTime":         text,
		"grant":              object(GrantShape),
		"id":                 text,
		"industry":           text,
		"name":               text,
		"password":           text,
		"password1":          text,
		"privileges":         array(integer),
		"projects":           array(object(ProjectShape)),
		"remarks":            text,
		"status":             boolean,
		"tableFieldsSetting": freeForm,
		"telephone":          text,
		"type":               integer,
	}}

	GrantShape = &Shape{Name: "Grant", Members: map[string]Type{
		"dataGathering":  within("point"),
		"edition":        {Base: "string", Values: []string{"free", "business"}},
		"feature":        array(feature),
		"flow":           within("flowCount", "tableCount"),
		"isSmallProduct": boolean,
		"licenseName":    text,
		"licenseType":    text,
		"licenseVersion": text,
		"macAddr":        array(text),
		"remainingTime":  integer,
		"skipMac":        boolean,
		"smallProducts":  array(text),
		"startTime":      text,
		"status":         boolean,
		"userCount":      integer,
		"userName":       text,
		"validityPeriod": integer,
		"version":        text,
		"visual":         within("dashboardCount"),
	}}

	ProjectShape = &Shape{Name: "Project", Members: map[string]Type{
		"bgColor":     text,
		"collections": array(text),
		"createTime":  text,
		"default":     boolean,
		"domain":      text,
		"grant":       object(GrantShape),
		"hasSSO":      boolean,
		"i18nProp":    freeForm,
		"id":          text,
		"industry":    text,
		"isUseDomain": boolean,
		"license":     object(GrantShape),
		"name":        text,
		"planId":      text,
		"projectType": text,
		"remarks":     text,
		"status":      boolean,
		"url":         text,
		"user":        freeForm,
	}}

	FieldShape = &Shape{Name: "Dataset field", Members: map[string]Type{
		"id":             text,
		"name":           text,
		"originalName":   text,
		"biType":         text,
		"originalBiType": text,
		"biTypeFmt":      text,
		"originalType":   text,
		"calculated":     boolean,
		"checked":        boolean,
		"isMeasure":      boolean,
		"colIndex":       integer,
		"userColIdx":     integer,
		"size":           integer,
		"style":          freeForm,
		"tableId":        text,
		"tableName":      text,
		"createdAt":      dateTime,
		"updatedAt":      dateTime,
	}}
)

var (
	text     = Type{Base: "string"}
	integer  = Type{Base: "integer"}
	boolean  = Type{Base: "boolean"}
	freeForm = Type{Base: "object"}
	dateTime = Type{Base: "date-time"}
	feature  = Type{Base: "string", Open: true, Values: []string{
		"gis", "threeD", "dashboardPlayback", "isc", "hikH5", "video", "handlerScript", "handlerNotification",
		"handlerGateway", "sdk", "Oauth", "BI", "pressMoney", "i18n", "AI",
	}}
)

func array(elem Type) Type     { return Type{Base: "array", Elem: &elem} }
func object(shape *Shape) Type { return Type{Base: "object", Shape: shape} }

// within is an object within another that holds counts.
func within(counts ...string) Type {
	members := make(map[string]Type, len(counts))
	for _, name := range counts {
		members[name] = integer
	}
	return object(&Shape{Members: members})
}
