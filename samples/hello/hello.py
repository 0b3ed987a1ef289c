import dgpu

device = dgpu.devices()[0]
context = dgpu.Context([device])
stream = context.stream(device)
model = dgpu.Model("tests/data/models/adder")
model.load(context, device)
session = model.session(max_tokens=32)
prompt = [13, 2, 3, 4, 11, 5, 6, 7, 12]  # "\n123+456="
print(session.generate(stream, prompt, max_new_tokens=4))  # [6, 8, 10, 13], which is "579\n"
