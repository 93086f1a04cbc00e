-- The health of an OutboxReplay. Lua 5.1, as Argo CD runs it; `obj` is the resource.
local found = {}
for _, condition in ipairs((obj.status or {}).conditions or {}) do
  found[condition.type] = condition
end
local function is(kind)
  return found[kind] ~= nil and found[kind].status == "True"
end
local function health(status)
  return {status = status, message = (obj.status or {}).message or ""}
end

if obj.metadata.deletionTimestamp ~= nil then
  return {status = "Progressing", message = "it is being deleted"}
end
if is("Complete") then return health("Healthy") end
if is("Failed") or is("Stalled") then return health("Degraded") end
if (obj.status or {}).observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "the operator has not seen the last change yet"}
end
if is("Suspended") then return health("Suspended") end
return health("Progressing")
