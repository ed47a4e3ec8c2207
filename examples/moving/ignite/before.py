import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import ModelCheckpoint
from ignite.metrics import Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(0)
x = torch.randn(400, 10, generator=generator)
y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=generator)
train_data, eval_data = TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
trainer = create_supervised_trainer(model, optimizer, nn.MSELoss())
evaluator = create_supervised_evaluator(model, metrics={"loss": Loss(nn.MSELoss())})


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    evaluator.run(DataLoader(eval_data, batch_size=32))
    print(f"epoch {engine.state.epoch}: {evaluator.state.metrics['loss']:.4f}")


checkpoint = ModelCheckpoint(
    "best", score_function=lambda engine: -engine.state.metrics["loss"], require_empty=False
)
evaluator.add_event_handler(Events.COMPLETED, checkpoint, {"model": model})
trainer.run(DataLoader(train_data, batch_size=32), max_epochs=5)
print(f"eval loss {evaluator.state.metrics['loss']:.6f}")
